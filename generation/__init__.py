"""Text from language models: files of weights, the step of a decoder, tokens, the loop."""
