"""The project's site as a folder of static files: ``PYTHONPATH=tools:tests/support/pages python -m website FOLDER``.

Its pages are the Markdown of the repository, what the scenarios say that each release answers, the museum's and the
judge's tables, and a playground: the simulation in the reader's browser. They load nothing from elsewhere.
"""
