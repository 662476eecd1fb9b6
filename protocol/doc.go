// Package protocol is the contract between the parts of Penstock: states and
// their transitions, the wire format of the Redis streams, error codes, retry
// delays, and the pure decisions that turn an outcome into a new state and its
// events. It imports the standard library only, does no I/O and reads no
// clock, so that everything in it can be replayed and checked.
package protocol
