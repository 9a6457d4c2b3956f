"""Calls the inference endpoints without FastAPI's middleware, routing and dependency layers.

For a small image those layers are a fifth of the work: `benchmarks/routes.py` measures both ways. FastAPI has
the same routes, documents them, and answers whatever is not a POST to one of their paths.
"""

from typing import Any, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from quatserve.service.web.parameters import read_query


class DirectDispatch:
    """An ASGI application in front of FastAPI's. Errors are left to RequestMiddleware, which is before it."""

    def __init__(self, api: ASGIApp, router: APIRouter) -> None:
        """The endpoints of `router` have the signature (request, parameters: a pydantic model)."""
        self._api = api
        self._routes = {route.path: (route, _parameter_model(route)) for route in _post_routes(router)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if found is None:
            await self._api(scope, receive, send)
            return
        route, model = found
        scope["route"] = route  # as FastAPI does, for the metrics
        request = Request(scope, receive)
        parameters = model.model_validate(await read_query(request))
        response: Any = await route.endpoint(request, parameters)
        await response(scope, receive, send)


def _post_routes(router: APIRouter) -> list[APIRoute]:
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    for route in routes:
        assert route.methods == {"POST"}, f"{route.path} also takes another method"
        assert [item.dependency for item in route.dependencies] == [read_query], "others would be skipped"
    return routes


def _parameter_model(route: APIRoute) -> type[BaseModel]:
    model: type[BaseModel] = get_type_hints(route.endpoint)["parameters"]
    return model
