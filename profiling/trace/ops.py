"""Ops of `aten` whose own time is not arithmetic, by name without namespace and overload.

Source: `native_functions.yaml` of PyTorch 2.13; a test asks the installed dispatcher that every composite
here has no CPU kernel of its own.
"""

VIEWS = """
    alias as_strided view _unsafe_view reshape _reshape_alias flatten unflatten transpose t permute numpy_T mT
    swapaxes swapdims movedim moveaxis select slice narrow split split_with_sizes unsafe_split chunk
    unsafe_chunk unbind expand expand_as squeeze squeeze_ unsqueeze unsqueeze_ transpose_ t_ diagonal unfold
    detach detach_ view_as reshape_as view_as_real view_as_complex real lift_fresh lift contiguous
    broadcast_to broadcast_tensors tensor_split resolve_conj resolve_neg conj _conj atleast_1d atleast_2d
    result_type size stride is_same_size
"""
ALLOCATION = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_ set_
    new_zeros new_ones new_full zeros zeros_like ones ones_like full full_like scalar_tensor
"""
# What they do is done by the ops they call, which have events of their own. The last line reads one number
# to the host.
COMPOSITES = """
    linear matmul layer_norm group_norm batch_norm rms_norm embedding scaled_dot_product_attention
    _scaled_dot_product_attention_math softmax log_softmax dropout feature_dropout clone to _to_copy type_as
    einsum tensordot bilinear conv1d conv2d conv3d convolution _convolution cross_entropy_loss nll_loss_nd
    concat concatenate hstack vstack stack repeat tile pad true_divide square item _local_scalar_dense
    is_nonzero
"""
