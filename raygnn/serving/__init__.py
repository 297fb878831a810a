"""A trained model behind HTTP.

A request passes `web_server` (its header), `gate` (token, body), `app` (route), `messages` and
`limits` (content), a replica of `raygnn.runtime.serving` (a batch), and `answers` (the model).
"""
