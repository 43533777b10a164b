"""An HTTP server with OpenAI's interface, for every family of models.

`app` has the routes, `running` the process. Knows no runtime and no file format of models.
"""
