"""The errors a user can cause, each carrying the sentence that the user reads.

Owns: the one class that every face (page, command line, API) turns into a message. Anything that is
not a `SpecvizError` is a bug and keeps its traceback. Must not know any other room.
"""


class SpecvizError(Exception):
    """Something the user can put right. The text says what was given, what is legal and what to do."""


class ConfigError(SpecvizError):
    """A setting outside its legal range, or two settings that cannot go together."""


class ModelError(SpecvizError):
    """A model or draft that cannot be had, or that this engine cannot decode losslessly."""


class ContextError(SpecvizError):
    """A prompt that does not fit the context of the target."""


class NumericsError(SpecvizError):
    """A model returned NaN or infinite logits."""


class DocumentError(SpecvizError):
    """A reference or corpus that cannot be read."""


class TraceError(SpecvizError):
    """A trace file that is damaged, foreign, or from an unknown version."""
