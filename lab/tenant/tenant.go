// Package tenant holds the lab's well-behaved services.
//
// The article service is a small real HTTP service: it looks an article up in
// a working set held in memory, renders it through a template, and answers
// with JSON. Service time and working set are adjustable.
package tenant

// Config is what a tenant's parent sends on its standard input.
type Config struct {
	// Units is how many articles one request looks up and renders: the dial of
	// the service time, fixed work whatever the clock does.
	Units int `json:"units"`
	// WorkingSetBytes is the size of the article store.
	WorkingSetBytes int64 `json:"workingSetBytes"`
	// Procs bounds the CPUs the service uses at once (GOMAXPROCS); 0: all it may.
	Procs int    `json:"procs,omitempty"`
	Seed  uint64 `json:"seed"`
}

// Ready is the one line that the service prints when it listens.
type Ready struct {
	Addr string `json:"addr"`
	Path string `json:"path"`
}
