package main

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// calicoVersion is the release of Calico whose objects this program reads and writes. Scripts compare it with the
// oldest release that they work with.
const calicoVersion = "v3.32.0"

// calicoctlFlags are flags that scripts pass to calicoctl.
type calicoctlFlags struct {
	allowMismatch bool // manxctl works with a cluster of any version
	logLevel      zapLevel
}

func (f *calicoctlFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.allowMismatch, "allow-version-mismatch", false, "has no effect: manxctl works with clusters of "+
		"any version of Calico. Scripts pass it to calicoctl")
	f.logLevel = zapLevel(zapcore.PanicLevel)
	flags.Var(&f.logLevel, "log-level", "log of the datastore's client on standard error: panic, fatal, error, warn, "+
		"info or debug")
}

// log returns the log of the datastore's client.
func (f *calicoctlFlags) log(c *cli) *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(c.err), zapcore.Level(f.logLevel)))
}

// zapLevel is a level as the value of a flag.
type zapLevel zapcore.Level

func (l *zapLevel) String() string        { return zapcore.Level(*l).String() }
func (l *zapLevel) Type() string          { return "LEVEL" }
func (l *zapLevel) Set(text string) error { return (*zapcore.Level)(l).UnmarshalText([]byte(text)) }

// withoutShortLevel replaces calicoctl's -l among the global flags, before the command. Behind the command, -l is the
// selector of get.
func withoutShortLevel(args []string, global *pflag.FlagSet) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args); i++ {
		flag, _, inside := strings.Cut(args[i], "=")
		switch {
		case len(flag) < 2 || flag[0] != '-' || flag == "--":
			return args // the command
		case strings.HasPrefix(flag, "-l"):
			level := strings.TrimPrefix(args[i], "-l")
			args[i] = "--log-level"
			if level == "" {
				i++ // the level is the next word
			} else {
				args[i] += "=" + strings.TrimPrefix(level, "=")
			}
		case !inside && takesWord(flag, global):
			i++
		}
	}
	return args
}

// takesWord reports whether the next word is the value of a flag. That of an unknown one is, as for cobra.
func takesWord(flag string, global *pflag.FlagSet) bool {
	name, long := strings.CutPrefix(flag, "--")
	if long {
		known := global.Lookup(name)
		return known == nil || known.NoOptDefVal == ""
	}
	known := global.ShorthandLookup(flag[1:2])
	return len(flag) == 2 && (known == nil || known.NoOptDefVal == "")
}
