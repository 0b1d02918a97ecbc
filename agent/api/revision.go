package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"berth.dev/berth/agent"
)

// Configurator previews, applies and remembers configurations. The agent's daemon and
// *Client are some.
type Configurator interface {
	// PreviewConfig says what a configuration would come to. Nothing is changed.
	PreviewConfig(ctx context.Context, p Proposal) (Revision, error)
	// ApplyConfig has it in force, all of it or, after an error, nothing, and keeps it
	// in the agent's configuration file.
	ApplyConfig(ctx context.Context, p Proposal) (Revision, error)
	// Versions are the last that were in force, the latest first, without their texts.
	Versions(ctx context.Context) ([]Version, error)
	// Version is one of them, with its text.
	Version(ctx context.Context, number int) (Version, error)
}

// Proposal is a configuration to preview or to apply: a text, or one that was in force.
type Proposal struct {
	// Text is a NodeConfig in YAML, Name what errors call it.
	Text string `json:"text,omitempty"`
	Name string `json:"name,omitempty"`
	// Version is the number of one that was in force, instead of a text; 0 is none.
	Version int `json:"version,omitempty"`
	// Replace gives all workloads places as if none had one. Else only those move that
	// have to.
	Replace bool `json:"replace,omitempty"`
	// Losses applies it though workloads lose their places by it that it still names.
	Losses bool `json:"losses,omitempty"`
	// Digest is that of a preview. If it would come to anything else by now, nothing is
	// applied. Empty is whatever it comes to.
	Digest string `json:"digest,omitempty"`
}

// Revision is what another configuration comes to.
type Revision struct {
	// Changes are the fields that differ, in words, Pending those that wait for the
	// agent's next start.
	Changes []string `json:"changes"`
	Pending []string `json:"pending,omitempty"`
	// Warnings are wishes of workloads that the policy ignores.
	Warnings []string `json:"warnings,omitempty"`
	// Effects are what becomes of workloads, by rising id; the others, as many as
	// Unchanged, keep what they have.
	Effects   []agent.Effect `json:"effects"`
	Unchanged int            `json:"unchanged"`
	// Writes are how many values of the kernel a preview would change.
	Writes int `json:"writes,omitempty"`
	// Digest is the same for the same effects and changes.
	Digest string `json:"digest"`
	// Version is the number that it has in the history; 0 is a preview, or that it was in
	// force already.
	Version int `json:"version,omitempty"`
}

// Version is a configuration that is or was in force.
type Version struct {
	Number int `json:"number"`
	// Since is when it came into force.
	Since time.Time `json:"since"`
	// How it came: "start" of the agent, change of its "file", "apply", or "rollback" to
	// version Of.
	How string `json:"how"`
	Of  int    `json:"of,omitempty"`
	// UID is the user who applied it, as the kernel says, and PID that process. For "start"
	// and "file" it is the user to whom the file belongs, without a process.
	UID int `json:"uid"`
	PID int `json:"pid,omitempty"`
	// Changes are what differs from the version before, in words.
	Changes []string `json:"changes"`
	// InForce is true for the one that is.
	InForce bool `json:"inForce,omitempty"`
	// Text is the configuration; absent in lists.
	Text string `json:"text,omitempty"`
}

// versions is the body that lists them.
type versions struct {
	Versions []Version `json:"versions"`
}

func (s *Server) configRoutes() []route {
	return []route{
		proposed("POST", "config/preview", "What another configuration would come to, on this host and now. Nothing is changed.", "preview a configuration", func() Configurator { return s.Configs }, Configurator.PreviewConfig),
		proposed("PUT", "config", "Have another configuration in force, all of it or, after an error, nothing, and keep it in the agent's file.", "apply a configuration", func() Configurator { return s.Configs }, Configurator.ApplyConfig),
		{
			method: "GET", path: "config/history", about: "The last configurations that were in force, the latest first.", answer: reflect.TypeFor[versions](),
			serve: func(r *http.Request, _ any) (any, error) {
				all, err := s.Configs.Versions(r.Context())
				return versions{append([]Version{}, all...)}, err
			},
		},
		{
			method: "GET", path: "config/history/{number}", about: "One of them, with its text.", answer: reflect.TypeFor[Version](), errors: []string{"missing"},
			serve: func(r *http.Request, _ any) (any, error) {
				number, err := strconv.Atoi(r.PathValue("number"))
				if err != nil {
					return nil, NoVersion(r.PathValue("number"))
				}
				return s.Configs.Version(r.Context(), number)
			},
		},
	}
}

func proposed(method, path, about, change string, of func() Configurator, do func(Configurator, context.Context, Proposal) (Revision, error)) route {
	return route{
		method: method, path: path, about: about, body: reflect.TypeFor[Proposal](), answer: reflect.TypeFor[Revision](),
		errors: append([]string{"denied"}, refusals...),
		serve: func(r *http.Request, body any) (any, error) {
			if err := agent.RequireAdmin(r.Context(), change, "a configuration moves workloads of all users"); err != nil {
				return nil, err
			}
			return do(of(), r.Context(), *body.(*Proposal))
		},
	}
}

// NoVersion is the error of a number that is not in the history.
func NoVersion(number any) error {
	return &agent.MissingError{Object: fmt.Sprintf("version %v of the configuration", number)}
}

// PreviewConfig says what a configuration would come to.
func (c *Client) PreviewConfig(ctx context.Context, p Proposal) (Revision, error) {
	return fetch[Revision](ctx, c, "POST", "config/preview", p)
}

// ApplyConfig has a configuration in force.
func (c *Client) ApplyConfig(ctx context.Context, p Proposal) (Revision, error) {
	return fetch[Revision](ctx, c, "PUT", "config", p)
}

// Versions are the last configurations that were in force, the latest first.
func (c *Client) Versions(ctx context.Context) ([]Version, error) {
	all, err := fetch[versions](ctx, c, "GET", "config/history", nil)
	return all.Versions, err
}

// Version is one of them.
func (c *Client) Version(ctx context.Context, number int) (Version, error) {
	return fetch[Version](ctx, c, "GET", fmt.Sprintf("config/history/%d", number), nil)
}
