"""An HTTP server with OpenAI's interface, for every family of models.

`app` has the routes, `running` the process.
"""
