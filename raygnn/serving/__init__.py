"""A trained model behind HTTP.

A request passes `web_server` (header, token, body), `app` (route), `messages` (content), a replica
of `raygnn.runtime.serving` (a batch), and `answers` (the model).
"""
