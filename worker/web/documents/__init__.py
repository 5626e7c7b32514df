"""Documents of the contract: OpenAPI, AsyncAPI, JSON Schemas."""
