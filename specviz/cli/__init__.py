"""The command line: arguments in, coloured tokens and numbers out.

Owns: what is printed in a terminal, exit codes, files that a command reads and writes. Must not know how
models decode or what is a legal setting: `run` and `config` say so, and errors carry their own sentences.
Models are imported only by the commands that need them, so that `replay` and `--help` start at once.
"""
