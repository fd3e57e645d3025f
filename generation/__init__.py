"""Text from language models: files of weights, the step of a decoder, tokens, the loop."""

#: Tokens of a block: as many rows as the array of the default machine has.
ROWS = 16
#: Positions of the caches.
CONTEXT = 256
