// Package cli is the command line of Berth: the tree of commands, one file per verb, and
// the only room that knows a terminal. A program is a main function that calls Main.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"berth.dev/berth/internal/plain"
)

// Exit statuses. Commands that define more say so in their help.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// exitStatus is an error that carries its own exit status; quiet ones have
// said everything already.
type exitStatus struct {
	code int
	err  error
}

func (e exitStatus) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exitStatus) Unwrap() error { return e.err }

// is reports whether an error is of a type, or wraps one that is.
func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// Program is a program with all of Berth's verbs. The zero value is berth itself.
type Program struct {
	// Name is what it is called; "" is "berth".
	Name string
	// Purpose is what its own verbs are for, and Example one of them, as root's help tells it.
	Purpose, Example string
	// Verbs are those that only it has; nil means none.
	Verbs func() []*cobra.Command
}

// Main runs berth as this process, and ends it with the exit status.
func Main() { Program{}.Main() }

// Main runs the program as this process, and ends it with the exit status.
func (p Program) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	// A second signal ends a command that still waits. A signal that follows at once is
	// the first one again, passed on by a parent. SIGHUP comes from the terminal and from
	// its shell: it ends nothing that still restores, nor does an output whose reader the
	// same signal has ended.
	context.AfterFunc(ctx, func() {
		ignoreSIGPIPE()
		time.Sleep(time.Second)
		signal.Ignore(syscall.SIGHUP)
		stop()
	})
	code := p.Run(ctx, os.Stdin, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(code)
}

// endSignals are the signals that end a command. SIGHUP, of a terminal that is gone, is not one
// where it was ignored from the start, as nohup(1) has it.
func endSignals() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// Hangups receives SIGHUP from now on, until signal.Stop, for a verb that reads its
// configuration again then: it does not end the context of Main any more.
func Hangups() chan os.Signal {
	signal.Reset(syscall.SIGHUP)
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	return again
}

// run is berth without the process: it returns the exit status.
func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) int {
	return Program{}.Run(ctx, stdin, stdout, stderr, args)
}

// Run is Main without the process: it returns the exit status.
func (p Program) Run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) int {
	if len(args) == 0 || !strings.HasPrefix(args[0], "__") { // children speak to their parent in bytes
		stdout, stderr = screenWriter(stdout), screenWriter(stderr)
	}
	root := rootCommand()
	if p.Name = cmp.Or(p.Name, root.Use); p.Verbs != nil {
		root.Use = p.Name
		addPurpose(root, purpose{p.Purpose, p.Example, p.Verbs()})
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	strictCompletion(root)
	refuseValues(root, new([]error))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitError
	if status, ok := errors.AsType[exitStatus](err); ok {
		code = status.code
	} else if ctx.Err() != nil {
		code = exitInterrupted
	}
	if msg := err.Error(); msg != "" {
		// Names of others may have newlines: the text after one must not look like a
		// message of its own. They may have sequences that a terminal obeys, too.
		fmt.Fprintln(stderr, p.Name+":", strings.ReplaceAll(plain.Text(msg), "\n", "\n       "))
	}
	return code
}

// UsageError is an error of wrong usage: exit status 2.
func UsageError(err error) error { return exitStatus{exitUsage, err} }

// NoArgs refuses arguments, as wrong usage.
func NoArgs(cmd *cobra.Command, args []string) error { return noArgs(cmd, args) }

// RootDir returns the directory that the flag --root of a verb names.
func RootDir(cmd *cobra.Command) string { return rootDir(cmd) }

// screenWriter is w without control sequences for a terminal, but for those that Berth
// itself draws with.
func screenWriter(w io.Writer) io.Writer {
	return &plain.Writer{To: w, Steering: isTerminal(w)}
}

// fileOf is the file that a writer of a command writes to.
func fileOf(w io.Writer) (f *os.File, ok bool) {
	if p, is := w.(*plain.Writer); is {
		w = p.To
	}
	f, ok = w.(*os.File)
	return f, ok
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := fileOf(w)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminal says how wide the terminal is that w writes to, and whether it shows colours
// (no-color.org): 0 and false where w is none.
func terminal(w io.Writer) (width int, colours bool) {
	if !isTerminal(w) {
		return 0, false
	}
	f, _ := fileOf(w)
	width, _, _ = term.GetSize(int(f.Fd())) // 0 if it does not say
	return width, os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func rootCommand() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:           "berth",
		Short:         "Place, guard and measure workloads on a shared Linux host",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
				return err
			}
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A verb that is not known leaves its flags to the command around it.
		if names := cmd.Flags().Args(); len(names) > 0 && (cmd == root || cmd.HasSubCommands() && nearestVerb(cmd, names[0]) != "") {
			return unknownVerb(cmd, names[0])
		}
		return exitStatus{exitUsage, fmt.Errorf("%w%s (see '%s --help')", err, nearestFlag(cmd, err), cmd.CommandPath())}
	})
	root.PersistentFlags().String("root", "/", "directory that stands for / (another host's tree, a test)")
	root.Flags().BoolVar(&version, "version", false, "say which version of Berth this is")
	addCommands(root)
	return root
}

func unknownVerb(cmd *cobra.Command, name string) error {
	return exitStatus{exitUsage, fmt.Errorf("unknown command %q%s (see '%s --help')", name, nearestVerb(cmd, name), cmd.CommandPath())}
}

// nearestVerb is a hint at the verb that was meant, or "".
func nearestVerb(root *cobra.Command, name string) string {
	var verbs []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			verbs = append(verbs, c.Name())
		}
	}
	if root.HasParent() {
		return plain.Near(name, verbs)
	}
	// What other tools call it.
	others := map[string]string{"top": "watch", "undo": "restore", "start": "run", "stop": "release", "benchmark": "lab", "check": "doctor"}
	if verb, ok := others[name]; ok {
		return fmt.Sprintf("; did you mean %q?", verb)
	}
	return plain.Near(name, verbs)
}

// nearestFlag is a hint at the flag that was meant, or "".
func nearestFlag(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return ""
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return plain.Near("--"+unknown.GetSpecifiedName(), names)
}

// strictCompletion has cobra's completion command refuse shells that it does not know, and
// its help command verbs.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil && help.Name() == "help" {
		help.Args = func(_ *cobra.Command, args []string) error {
			if verb, rest, err := root.Find(args); err == nil && len(rest) > 0 {
				return unknownVerb(verb, rest[0])
			}
			return nil
		}
	}
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil || !completion.HasSubCommands() {
		return
	}
	var shells []string
	for _, c := range completion.Commands() {
		shells = append(shells, c.Name())
	}
	completion.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return exitStatus{exitUsage, fmt.Errorf("completion %q: no such shell; there are %s", args[0], strings.Join(shells, ", "))}
		}
		return nil
	}
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// refuseValues has a command, and those below it, refuse all values of flags that are
// wrong at once, before it looks at its arguments. An empty one, as an unset shell variable
// gives, is wrong of any flag: it must not pass for a flag that was not given.
func refuseValues(cmd *cobra.Command, wrong *[]error) {
	for _, c := range cmd.Commands() {
		refuseValues(c, wrong)
	}
	wrap := func(f *pflag.Flag) { f.Value = checkedValue{f.Value, f.Name, wrong} }
	cmd.Flags().VisitAll(wrap)
	cmd.PersistentFlags().VisitAll(wrap)
	refuse := cmd.FlagErrorFunc()
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return refuse(cmd, errors.Join(append(*wrong, err)...))
	})
	args := cmd.Args
	cmd.Args = func(cmd *cobra.Command, given []string) error {
		if len(*wrong) > 0 {
			return cmd.FlagErrorFunc()(cmd, nil)
		}
		if args == nil {
			return nil
		}
		return args(cmd, given)
	}
}

// checkedValue is a flag's value whose errors are told with those of others.
type checkedValue struct {
	pflag.Value
	name  string
	wrong *[]error
}

// Set notes what is wrong with the text, and returns no error.
func (v checkedValue) Set(text string) error {
	err := errors.New("it is empty")
	if _, mayBe := v.Value.(*className); text != "" || mayBe {
		err = v.Value.Set(text)
	}
	switch kind := v.Type(); {
	case err != nil && kind == "duration":
		err = fmt.Errorf("%q is no time, such as 30s or 5m", text)
	case is[*strconv.NumError](err) && kind == "bool":
		err = fmt.Errorf("%q is neither true nor false", text)
	case is[*strconv.NumError](err) && strings.HasPrefix(kind, "float"):
		err = fmt.Errorf("%q is no number", text)
	case is[*strconv.NumError](err):
		err = fmt.Errorf("%q is no whole number", text)
	}
	if err != nil {
		*v.wrong = append(*v.wrong, fmt.Errorf("--%s: %w", v.name, err))
	}
	return nil
}

// className is a flag's value that may be empty.
type className string

// Type returns "string".
func (*className) Type() string { return "string" }

// String returns the text.
func (v *className) String() string { return string(*v) }

// Set takes any text.
func (v *className) Set(text string) error {
	*v = className(text)
	return nil
}

// oneOf is a flag's value that is one of some words.
type oneOf struct {
	word  string
	words []string
}

// Type returns "string".
func (v *oneOf) Type() string { return "string" }

// String returns the word.
func (v *oneOf) String() string { return v.word }

// Set refuses a text that is not one of the words.
func (v *oneOf) Set(text string) error {
	if !slices.Contains(v.words, text) {
		return fmt.Errorf("%q: it is one of %s%s", text, strings.Join(v.words, ", "), plain.Near(text, v.words))
	}
	v.word = text
	return nil
}

// wordFlag adds a flag that is one of some words, the first by default.
func wordFlag(cmd *cobra.Command, name, shorthand, about string, words ...string) {
	cmd.Flags().VarP(&oneOf{words[0], words}, name, shorthand, about)
	completeWords(cmd, name, words...)
}

// word is the value of a flag.
func word(cmd *cobra.Command, name string) string { return cmd.Flags().Lookup(name).Value.String() }

// outputFlag adds --output: text by default, json, or one of more words.
func outputFlag(cmd *cobra.Command, about string, more ...string) {
	wordFlag(cmd, "output", "o", about, append([]string{"text", "json"}, more...)...)
}

// isJSON reports whether --output asks for JSON.
func isJSON(cmd *cobra.Command) bool { return word(cmd, "output") == "json" }

// show prints a value as --output says: as JSON, or as its text.
func show(cmd *cobra.Command, value any, text func() string) error {
	if isJSON(cmd) {
		return writeJSON(cmd.OutOrStdout(), value)
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text())
	return err
}

// exclusive refuses two flags together, as wrong usage. The command has its Args by
// then.
func exclusive(cmd *cobra.Command, one, other string) {
	cmd.MarkFlagsMutuallyExclusive(one, other) // for completion
	args := cmd.Args
	cmd.Args = func(cmd *cobra.Command, names []string) error {
		if cmd.Flags().Changed(one) && cmd.Flags().Changed(other) {
			return exitStatus{exitUsage, fmt.Errorf("--%s and --%s: only one of them (see '%s --help')", one, other, cmd.CommandPath())}
		}
		if args == nil {
			return nil
		}
		return args(cmd, names)
	}
}

// ignoreSIGPIPE lets a write to a pipe without a reader fail instead of killing this
// process, which has values to restore. Programs that it starts are not
// affected.
func ignoreSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// rootDir returns the directory that --root names.
func rootDir(cmd *cobra.Command) string {
	dir, _ := cmd.Flags().GetString("root")
	return dir
}
