"""Ops of `aten` whose own time is not arithmetic, by name without namespace and overload.

Source: `native_functions.yaml` of PyTorch 2.13; a test asks the installed dispatcher that every composite
here has no CPU kernel of its own.
"""

# Without a kernel of their own for any device: what runs is the ops that they call. A recording of a step
# (graph or tape) holds those and not these.
IMPLICIT = """
    linear matmul layer_norm group_norm batch_norm rms_norm scaled_dot_product_attention softmax log_softmax
    _scaled_dot_product_attention_math dropout feature_dropout to type_as einsum tensordot bilinear conv1d
    conv2d conv3d cross_entropy_loss nll_loss_nd concat concatenate hstack vstack tile pad true_divide
    square item reshape flatten unflatten numpy_T mT swapaxes swapdims movedim moveaxis narrow chunk
    unsafe_chunk expand_as view_as reshape_as real contiguous broadcast_to broadcast_tensors tensor_split
    resolve_conj resolve_neg conj atleast_1d atleast_2d result_type size stride
"""
VIEWS = """
    alias as_strided view _unsafe_view _reshape_alias transpose t permute select slice split split_with_sizes
    unsafe_split unbind expand squeeze squeeze_ unsqueeze unsqueeze_ transpose_ t_ diagonal unfold detach
    detach_ view_as_real view_as_complex lift_fresh lift _conj is_same_size
"""
ALLOCATION = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_ set_
    new_zeros new_ones new_full zeros zeros_like ones ones_like full full_like scalar_tensor
"""
# One kernel for every device that only calls other ops, and the read of one number to the host.
EXPLICIT = """
    embedding clone _to_copy stack repeat convolution _convolution _local_scalar_dense
"""
