// Package kubernetes tells what pods there are on a node. It lists and watches them as the protocol of the API server has it, over net/http:
// the official client would add tens of megabytes to the binary for one kind of object and two requests.
//
//	GET /api/v1/pods?fieldSelector=spec.nodeName=NODE&limit=N[&resourceVersion=0][&continue=TOKEN]
//	GET /api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion=N&timeoutSeconds=N&fieldSelector=...
//
// A list gives the state at a resource version, in pages; a watch what changed after it, as JSON objects {"type", "object"} without end.
// A watch that ended goes on where it was. One that is told 410 Gone, as an HTTP status or as an event of type ERROR, lists anew.
//
// What is kept is bounded: pods of one node only, of each the labels and what is asked for, up to a number of pods. A pod that was deleted
// is remembered for a while: its files are read to their end.
package kubernetes
