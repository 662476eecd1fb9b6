// Package floors holds the test that keeps imports going down only: protocol,
// then the stores and helpers, then the pipeline's stages, which know no
// sibling, then the API, then the wiring, then the programs.
package floors
