"""The OpenAPI document: made from the routes and the types that check requests, and served."""
