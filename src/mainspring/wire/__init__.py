"""The structs of the public API: the server checks requests and documents itself with them, the SDK
encodes requests and decodes answers with them.

Requests are strict. Answers can be read by an SDK that is older or newer than the server: unknown
fields are ignored, enumerations are open (`values.OpenEnum`), and what may be absent has a default.
"""
