"""HTTP: server, middleware, uploads, routes, pages, problems."""
