package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"syscall"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// Problem is an answer that is an error (RFC 9457, application/problem+json).
type Problem struct {
	// Type is "urn:berth:" and the kind of error, one of those in openapi.json.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail says what happened.
	Detail string `json:"detail"`
	// Remedy says what to do about it.
	Remedy string `json:"remedy"`
	// Cause has the fields of the error, for the Client to make it again.
	Cause json.RawMessage `json:"cause,omitempty"`
}

const urn = "urn:berth:"

// Error is an error that the agent answered. It unwraps to the same typed error
// that the agent had, if that has a type.
type Error struct {
	Problem Problem
	cause   error
}

func (e *Error) Error() string { return e.Problem.Detail }

// Unwrap returns the typed error.
func (e *Error) Unwrap() error { return e.cause }

// RequestError is a request that the agent does not understand.
type RequestError struct {
	Status int    `json:"-"`
	Reason string `json:"reason"`
	Remedy string `json:"-"`
}

func (e *RequestError) Error() string { return e.Reason }

// kind is one kind of error on its way over the wire.
type kind struct {
	name   string
	status int
	title  string
	remedy string
	// find returns what of the error goes over the wire; ok is false if it is not
	// of this kind.
	find func(error) (cause any, ok bool)
	// read makes the error of it again; nil leaves it untyped.
	read func(json.RawMessage) (error, error)
	// cause is the type of what find returns; nil is nothing.
	cause reflect.Type
}

// wired is a kind whose error goes over the wire as a W.
func wired[E error, W any](name string, status int, title, remedy string, to func(E) W, from func(W) error) kind {
	return kind{
		name: name, status: status, title: title, remedy: remedy, cause: reflect.TypeFor[W](),
		find: func(err error) (any, bool) {
			var e E
			if !errors.As(err, &e) {
				return nil, false
			}
			return to(e), true
		},
		read: func(text json.RawMessage) (error, error) {
			var w W
			err := json.Unmarshal(text, &w)
			return from(w), err
		},
	}
}

// plain is a kind whose error has nothing but exported fields that are plain data.
func plain[T any, P interface {
	*T
	error
}](name string, status int, title, remedy string) kind {
	return wired(name, status, title, remedy, func(e P) T { return *e }, func(w T) error { return P(&w) })
}

// refused is the kind of a place.Refusal.
func refused[T any, P interface {
	*T
	place.Refusal
}](status int, title, remedy string) kind {
	return plain[T, P](P(new(T)).Kind(), status, title, remedy)
}

// sentinel is a kind without fields.
func sentinel(name string, status int, title, remedy string, is error) kind {
	return kind{
		name: name, status: status, title: title, remedy: remedy,
		find: func(err error) (any, bool) { return nil, errors.Is(err, is) },
		read: func(json.RawMessage) (error, error) { return is, nil },
	}
}

const (
	tooMuch = "release or resize what holds it, ask for less, or look at GET /v1/machine"
	rewrite = "correct the request; docs/openapi.json describes it"
)

// kinds are all kinds of errors, the most telling first: an error that is of
// several is the first of them.
func kinds() []kind {
	return []kind{
		refused[place.NotHeldError](http.StatusNotFound, "no such workload", "GET /v1/workloads lists those that there are"),
		refused[place.HeldError](http.StatusConflict, "the workload exists", "resize it with PUT, or release it first"),
		plain[agent.OccupiedError]("occupied", http.StatusConflict, "the workload still has processes", "end them, or release it with ?kill=true"),
		plain[agent.StuckError]("stuck", http.StatusConflict, "killed processes have not ended", "free what they wait for: the detail names it; the workload is released once they have ended"),
		refused[place.InvalidError](http.StatusBadRequest, "the request makes no sense", rewrite),
		refused[place.CPUsError](http.StatusConflict, "too few CPUs", tooMuch),
		refused[place.SMTError](http.StatusConflict, "too few whole cores", tooMuch),
		refused[place.NUMAError](http.StatusConflict, "the NUMA nodes cannot serve it", tooMuch),
		refused[place.MemoryError](http.StatusConflict, "too little memory", tooMuch),
		refused[place.DeviceError](http.StatusConflict, "no such device, or not free", tooMuch),
		refused[place.FloorError](http.StatusConflict, "a workload would be left without CPUs", tooMuch),
		refused[place.ConflictError](http.StatusConflict, "the CPUs are held", tooMuch),
		refused[place.RejectedError](http.StatusConflict, "the policy refuses it", "change the request, or the policy in the configuration"),
		refused[place.StaleError](http.StatusConflict, "the state changed meanwhile", "send the request again"),
		plain[agent.DeniedError]("denied", http.StatusForbidden, "this user may not", "ask root, or a user in agent.admins of the configuration; the detail says what everybody may"),
		plain[agent.BusyError]("busy", http.StatusServiceUnavailable, "another agent keeps the node", "stop one of the two"),
		plain[agent.OwnedError]("claimed", http.StatusConflict, "another node gives these CPUs away", "use the one node for all, or end the other's workloads; the detail says where it is"),
		plain[agent.MissingError]("missing", http.StatusNotFound, "the group or process is not there", "name one that exists"),
		plain[agent.GroupError]("group", http.StatusConflict, "the group may not be placed", "name another, or change what the detail says is in the way"),
		plain[kernel.NotSupportedError]("not-supported", http.StatusNotImplemented, "this host cannot do it", "the detail says what would enable it; so does berth doctor"),
		wired("kernel", http.StatusInternalServerError, "the kernel refused",
			"the detail says what the kernel said and what that usually means; everything is as it was", stepCauseOf, stepCause.err),
		plain[kernel.ChangedError]("changed", http.StatusConflict, "someone else changed a value", "find who writes it: there is to be one writer"),
		wired("corrupt", http.StatusConflict, "a record cannot be read",
			"the detail names it: run the version of Berth that wrote it, or give everything back with berth restore --all",
			func(e *agent.CorruptError) corruptCause { return corruptCause{e.File, e.Cause.Error()} },
			func(c corruptCause) error { return &agent.CorruptError{File: c.File, Cause: errors.New(c.Error)} }),
		sentinel("disk-full", http.StatusInsufficientStorage, "the disk of the state directory is full", "free some space there; everything is as it was", syscall.ENOSPC),
		plain[RequestError]("request", http.StatusBadRequest, "the request is not understood", rewrite),
		sentinel("timeout", http.StatusServiceUnavailable, "it took too long", "send the request again", context.DeadlineExceeded),
		sentinel("cancelled", http.StatusServiceUnavailable, "the agent is stopping", "send the request again once it is back", context.Canceled),
		{
			name: "internal", status: http.StatusInternalServerError, title: "something went wrong",
			remedy: "look at the agent's log",
			find:   func(error) (any, bool) { return nil, true },
		},
	}
}

// Kinds returns the names of all kinds of errors.
func Kinds() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// KindOf returns the kind of an error; for one that has no type it is "internal".
func KindOf(err error) string {
	k, _ := kindOf(err)
	return k.name
}

// kindOf returns the kind of an error and what of it goes over the wire.
func kindOf(err error) (kind, any) {
	for _, k := range kinds() {
		if cause, ok := k.find(err); ok {
			return k, cause
		}
	}
	panic("the last kind is every error")
}

// problemOf returns how an error goes over the wire.
func problemOf(err error) Problem {
	k, cause := kindOf(err)
	p := Problem{Type: urn + k.name, Title: k.title, Status: k.status, Detail: err.Error(), Remedy: k.remedy}
	if cause != nil {
		p.Cause, _ = json.Marshal(cause)
	}
	if request, ok := errors.AsType[*RequestError](err); ok {
		p.Status = request.Status
		if request.Remedy != "" {
			p.Remedy = request.Remedy
		}
	}
	return p
}

// errorOf returns the error that a Problem tells of.
func errorOf(p Problem) error {
	e := &Error{Problem: p}
	for _, k := range kinds() {
		if p.Type != urn+k.name || k.read == nil {
			continue
		}
		cause, err := k.read(p.Cause)
		if err != nil {
			return fmt.Errorf("%s (its cause cannot be read: %w)", p.Detail, err)
		}
		if r, ok := cause.(*RequestError); ok {
			r.Status, r.Remedy = p.Status, p.Remedy
		}
		e.cause = cause
	}
	return e
}

// stepCause is a kernel.StepError.
type stepCause struct {
	Step kernel.Step `json:"step"`
	// Error is what the kernel said, Errno its number, or 0.
	Error string `json:"error"`
	Errno int    `json:"errno,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

func stepCauseOf(e *kernel.StepError) stepCause {
	c := stepCause{Step: e.Step, Error: e.Err.Error(), Hint: e.Hint}
	var errno syscall.Errno
	if errors.As(e.Err, &errno) {
		c.Errno = int(errno)
	}
	return c
}

func (c stepCause) err() error {
	return &kernel.StepError{Step: c.Step, Err: &saidError{c.Error, syscall.Errno(c.Errno)}, Hint: c.Hint}
}

// saidError is what a kernel elsewhere said.
type saidError struct {
	text  string
	errno syscall.Errno
}

func (e *saidError) Error() string { return e.text }

// Unwrap returns the error's number.
func (e *saidError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// corruptCause is an agent.CorruptError.
type corruptCause struct {
	File  string `json:"file"`
	Error string `json:"error"`
}
