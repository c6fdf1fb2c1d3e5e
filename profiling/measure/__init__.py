from variants.interrupted import from_the_first_line

from_the_first_line()
