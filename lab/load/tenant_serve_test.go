package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// startTenant runs ServeTenant with the given config line and waits for its Target.
func startTenant(t *testing.T, ctx context.Context, config string) (ready Target, in *io.PipeWriter, ended chan error) {
	t.Helper()
	inReader, in := io.Pipe()
	outReader, out := io.Pipe()
	ended = make(chan error, 1)
	go func() { ended <- ServeTenant(ctx, inReader, out) }()
	if _, err := io.WriteString(in, config+"\n"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(outReader).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatal(err)
	}
	return ready, in, ended
}

func TestServe(t *testing.T) {
	t.Parallel()
	ready, in, ended := startTenant(t, t.Context(), `{"units":1,"workingSetBytes":4096,"seed":1}`)
	for _, path := range []string{ready.Path, "/healthz"} {
		response, err := http.Get("http://" + ready.Addr + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != 200 {
			t.Errorf("GET %s: status %d, %v", path, response.StatusCode, err)
		}
	}
	in.Close()
	if err := <-ended; err != nil {
		t.Errorf("after the end of the input: %v", err)
	}
	if _, err := http.Get("http://" + ready.Addr + "/healthz"); err == nil {
		t.Error("still serving after the end of the input")
	}
}

func TestServeCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	_, in, ended := startTenant(t, ctx, `{"units":1,"workingSetBytes":0,"seed":1}`)
	defer in.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("after cancelling: %v", err)
	}
}

func TestServeTenantRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, input, want string }{
		{"nothing", "", "tenant config: parent gone"},
		{"empty line", "\n", "tenant config: parent gone"},
		{"not JSON", "hello\n", "tenant config: invalid character"},
		{"cut off", `{"units":`, "tenant config: unexpected EOF"},
		{"unknown field", `{"unit":1}` + "\n", `tenant config: json: unknown field "unit"`},
		{"two values", "{} {}\n", "tenant config: more than one value"},
		{"wrong type", `{"units":"1"}` + "\n", "tenant config: json: cannot unmarshal"},
		{"bad value", `{"units":-1}` + "\n", "tenant config: units -1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := ServeTenant(t.Context(), strings.NewReader(test.input), &out)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if out.Len() > 0 {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}

func TestServeCannotPrint(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken pipe")
	err := ServeTenant(t.Context(), strings.NewReader("{}\n"), writerFunc(func([]byte) (int, error) { return 0, broken }))
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// The service listens where it is told.
func TestServeElsewhere(t *testing.T) {
	t.Parallel()
	ready, in, ended := startTenant(t, t.Context(), `{"units":1,"workingSetBytes":4096,"seed":1,"listen":"127.0.0.9"}`)
	if !strings.HasPrefix(ready.Addr, "127.0.0.9:") {
		t.Errorf("it listens at %s", ready.Addr)
	}
	in.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := (TenantConfig{Listen: "here"}).Validate(); err == nil || !strings.Contains(err.Error(), `listen "here": want an IP address`) {
		t.Errorf("%v", err)
	}
}
