package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
)

// The kinds of events of the guard.
const (
	Found     agent.EventKind = "found"      // who suffers, from what and by whom; told anew every ten minutes while it lasts
	Guarded   agent.EventKind = "guarded"    // a step of the guard: what it did or would do, and what came of it
	GuardMode agent.EventKind = "guard-mode" // somebody has set another mode
)

// Guardian sets what the guard does. The agent's daemon and *Client are some.
type Guardian interface {
	// SetMode restores everything, then changes the guard's mode until the
	// configuration's changes.
	SetMode(ctx context.Context, mode config.GuardMode) error
}

// Guard is where the guard stands.
type Guard struct {
	// Mode is off, observe, preview or enforce; Configured is that of the configuration.
	Mode       config.GuardMode `json:"mode"`
	Configured config.GuardMode `json:"configured"`
	// Reason says why it does not run though it is not off.
	Reason string `json:"reason,omitempty"`
	// Status is where it stands; absent while it does not run.
	Status *guard.Status `json:"status,omitempty"`
	// Workloads are the ids of those whose groups Status names.
	Workloads map[string]string `json:"workloads"`
}

// guardMode is the body that sets a mode.
type guardMode struct {
	// Mode is off, observe, preview or enforce.
	Mode config.GuardMode `json:"mode"`
}

func (s *Server) setGuardMode(r *http.Request, body any) (any, error) {
	mode := body.(*guardMode).Mode
	if !slices.Contains(config.GuardModes(), mode) {
		return nil, &RequestError{http.StatusBadRequest, fmt.Sprintf("mode %q: there is no such mode", mode), "there are off, observe, preview and enforce"}
	}
	if err := agent.RequireAdmin(r.Context(), "set the guard's mode", "the guard acts on workloads of all users"); err != nil {
		return nil, err
	}
	if err := s.Guardian.SetMode(r.Context(), mode); err != nil {
		return nil, err
	}
	return s.View.Guard(r.Context())
}

// Guard is where the guard stands.
func (c *Client) Guard(ctx context.Context) (Guard, error) {
	return fetch[Guard](ctx, c, "GET", "guard", nil)
}

// SetMode changes the guard's mode until the configuration's changes.
func (c *Client) SetMode(ctx context.Context, mode config.GuardMode) error {
	_, err := fetch[Guard](ctx, c, "PUT", "guard", guardMode{mode})
	return err
}
