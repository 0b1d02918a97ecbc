package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/load"
)

// Server is one that can be started by its name alone: with a configuration of its own in
// a temporary folder, on a free port of the loopback, as an ordinary user.
type Server struct {
	Name    string
	About   string // what it serves, in words
	Program string // "redis-server"
	Package string // of Debian
	Hello   string // what it answers before it is filled
	version []string

	configure func(at place) (Config, load.Target, error)
	fill      []string // requests, one after the other
}

// place is where a server runs.
type place struct {
	program, dir string
	port, cpus   int
}

func (p place) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// items is how many each server serves, of about a kilobyte.
const items = 1000

// Servers are those that the lab knows.
func Servers() []Server {
	return []Server{
		{"nginx", "a file of 4 KiB by HTTP", "nginx", "nginx-light", "/index.html", []string{"-v"}, nginx, nil},
		{"redis", "GET of 1000 keys of 1 KiB", "redis-server", "redis-server", "PING", []string{"--version"}, redis, each("SET key:%d %s")},
		{"memcached", "get of 1000 keys of 1 KiB", "memcached", "memcached", "version", []string{"--version"}, memcached, each("set key:%d %s")},
		{"postgres", "SELECT of one row of 10,000 by its key", "postgres", "postgresql", "SELECT 1", []string{"--version"}, postgres, []string{
			"CREATE TABLE accounts AS SELECT id, md5(id::text) AS filler FROM generate_series(1, 10000) AS id",
			"ALTER TABLE accounts ADD PRIMARY KEY (id)", "ANALYZE accounts",
		}},
	}
}

// Find returns a server by its name.
func Find(name string) (Server, bool) {
	all := Servers()
	i := slices.IndexFunc(all, func(s Server) bool { return s.Name == name })
	if i < 0 {
		return Server{}, false
	}
	return all[i], true
}

func each(format string) []string {
	value := strings.Repeat("x", 1024)
	all := make([]string, items)
	for i := range all {
		all[i] = fmt.Sprintf(format, i, value)
	}
	return all
}

// installed is where the server's program is. A kernel.NotSupportedError says that it is not.
func (s Server) installed() (string, error) {
	path, err := exec.LookPath(s.Program)
	for _, pattern := range []string{"/usr/sbin/", "/usr/local/sbin/", "/usr/lib/postgresql/*/bin/"} {
		if err == nil {
			break
		}
		found, _ := filepath.Glob(pattern + s.Program) // the pattern is well formed
		if len(found) > 0 {
			path, err = found[len(found)-1], nil
		}
	}
	if err != nil {
		return "", &kernel.NotSupportedError{Feature: "tenant " + s.Name, Reason: s.Program + " is not installed", Remedy: "install it (Debian: apt-get install " + s.Package + ")"}
	}
	return path, nil
}

// Version is what the installed program says of itself, in one line.
func (s Server) Version() (string, error) {
	path, err := s.installed()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(path, s.version...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", path, err)
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line), nil
}

// runAs is who servers run as, where the lab is root.
const runAs = "nobody"

// Prepare makes a server's folder and says how it is started, for so many CPUs, and what
// it is asked. The keeper removes the folder; until it has the Config the caller does.
func (s Server) Prepare(cpus int) (c Config, t load.Target, err error) {
	at := place{cpus: cpus}
	if at.program, err = s.installed(); err != nil {
		return c, t, err
	}
	if at.dir, err = os.MkdirTemp("", "berth-lab-"+s.Name+"-"); err != nil {
		return c, t, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("tenant %s: %w", s.Name, err), os.RemoveAll(at.dir))
		}
	}()
	if at.port, err = freePort(); err != nil {
		return c, t, err
	}
	if c, t, err = s.configure(at); err != nil {
		return c, t, err
	}
	c.Dir, c.Remove = at.dir, at.dir
	t.Addr = at.addr()
	if os.Geteuid() == 0 {
		c.User = runAs
		err = own(at.dir)
	}
	return c, t, err
}

// own gives a folder to the user that servers run as.
func own(dir string) error {
	credential, err := credentialOf(runAs)
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(credential.Uid), int(credential.Gid))
	})
}

// Fill gives a server that answers what it serves.
func (s Server) Fill(ctx context.Context, t load.Target) error {
	if len(s.fill) == 0 {
		return nil
	}
	c, err := load.Dial(ctx, t)
	if err == nil {
		err = errors.Join(c.Do(ctx, s.fill...), c.Close())
	}
	if err != nil {
		return fmt.Errorf("fill %s: %w", s.Name, err)
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func nginx(at place) (Config, load.Target, error) {
	const page = "index.html"
	conf := fmt.Sprintf(`daemon off;
worker_processes %d;
pid %[2]s/nginx.pid;
error_log stderr;
events { worker_connections 1024; }
http {
	access_log off;
	keepalive_requests 1000000000;
	keepalive_timeout 1d;
	client_body_temp_path %[2]s;
	proxy_temp_path %[2]s;
	fastcgi_temp_path %[2]s;
	uwsgi_temp_path %[2]s;
	scgi_temp_path %[2]s;
	server {
		listen %[3]s;
		root %[2]s;
	}
}
`, at.cpus, at.dir, at.addr())
	file := filepath.Join(at.dir, "nginx.conf")
	err := os.WriteFile(file, []byte(conf), 0o600)
	if err == nil {
		err = os.WriteFile(filepath.Join(at.dir, page), bytes.Repeat([]byte("x"), 4096), 0o644)
	}
	return Config{Argv: []string{at.program, "-p", at.dir, "-e", "stderr", "-c", file}, Stop: syscall.SIGTERM}, load.Target{Protocol: "http", Path: "/" + page}, err
}

func redis(at place) (Config, load.Target, error) {
	return Config{
		Argv: []string{
			at.program, "--bind", "127.0.0.1", "--port", strconv.Itoa(at.port), "--save", "", "--appendonly", "no",
			"--dir", at.dir, "--daemonize", "no", "--loglevel", "warning",
		},
		Stop: syscall.SIGTERM,
	}, load.Target{Protocol: "redis", Path: fmt.Sprintf("GET key:{0-%d}", items-1)}, nil
}

func memcached(at place) (Config, load.Target, error) {
	return Config{
		Argv: []string{at.program, "-l", "127.0.0.1", "-p", strconv.Itoa(at.port), "-U", "0", "-t", strconv.Itoa(at.cpus), "-m", "64", "-c", "1024"},
		Stop: syscall.SIGTERM,
	}, load.Target{Protocol: "memcached", Path: fmt.Sprintf("get key:{0-%d}", items-1)}, nil
}

// postgres ends at once on SIGINT ("fast shutdown"); killed, it would leave a segment of
// shared memory behind.
func postgres(at place) (Config, load.Target, error) {
	const name = "berth"
	program, err := filepath.EvalSymlinks(at.program)
	initdb := filepath.Join(filepath.Dir(program), "initdb")
	if err == nil {
		_, err = os.Stat(initdb)
	}
	if err != nil {
		return Config{}, load.Target{}, fmt.Errorf("initdb is not beside %s: %w", at.program, err)
	}
	data := filepath.Join(at.dir, "data")
	return Config{
		Before: [][]string{{initdb, "-D", data, "-U", name, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"}},
		Argv: []string{
			program, "-D", data, "-p", strconv.Itoa(at.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "autovacuum=off", "-c", "log_min_messages=fatal",
		},
		Stop: syscall.SIGINT,
	}, load.Target{Protocol: "postgres", User: name, Database: "postgres", Path: "SELECT filler FROM accounts WHERE id = {1-10000}"}, nil
}

// Shell is how a user's command is run.
func Shell(command string) []string { return []string{"/bin/sh", "-c", command} }

// Text is a command as it was typed.
func Text(argv []string) string {
	if len(argv) == 3 && slices.Equal(argv[:2], Shell("")[:2]) {
		return argv[2]
	}
	return strings.Join(argv, " ")
}
