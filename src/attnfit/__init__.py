"""attnfit: will this launch find an attention backend?"""

__version__ = "0.1.0"
