package penstockv1

import _ "embed" // for the directive below

//go:embed openapi.json
var openAPI string

// OpenAPI returns the OpenAPI 3.1 document of the REST API as JSON.
func OpenAPI() string { return openAPI }
