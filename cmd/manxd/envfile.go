package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// unitSettings is the EnvironmentFile= of manxd.service.
const unitSettings = "/etc/manx/manxd.env"

// envFile has the variables of a file that systemd gives manxd as its environment.
type envFile struct {
	name string // of the file, without its folder
	vars map[string]string
}

// readEnvFile reads the file. Without one there are no variables.
func readEnvFile(path string) (f envFile, err error) {
	f.name = filepath.Base(path)
	text, err := os.ReadFile(path)
	switch {
	case path == "" || errors.Is(err, fs.ErrNotExist):
		return f, nil
	case errors.Is(err, fs.ErrPermission):
		return f, fmt.Errorf("settings of the unit: %w: run the command as root, or with --env-file=", err)
	case err != nil:
		return f, fmt.Errorf("settings of the unit: %w", err)
	}
	if f.vars, err = parseEnvFile(string(text)); err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// get returns the value of a variable: systemd's file replaces what the environment has.
func (f envFile) get(name string) string {
	if value, ok := f.vars[name]; ok {
		return value
	}
	return os.Getenv(name)
}

// environment returns the environment of the process with the file's variables, which come later in the list.
func (f envFile) environment() []string {
	list := os.Environ()
	for name, value := range f.vars {
		list = append(list, name+"="+value)
	}
	return list
}

// source says where the value of a variable comes from.
func (f envFile) source(name string) string {
	if _, ok := f.vars[name]; ok {
		return f.name + " " + name
	}
	return "environment " + name
}

// parseEnvFile reads lines NAME=value as systemd.exec(5) has them under EnvironmentFile=. The value may be in quotes.
// What needs more of systemd's rules, such as a backslash, is an error and never read in another way.
func parseEnvFile(text string) (map[string]string, error) {
	vars := map[string]string{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !found || name == "" || strings.ContainsAny(name, " \t") {
			about := ""
			if found { // without "=" the line may be the rest of a secret, as is what follows the "="
				about = ": it begins with " + strconv.Quote(name)
			}
			return nil, fmt.Errorf("line %d is not NAME=value, and systemd ignores it%s", number, about)
		}
		if strings.Contains(value, `\`) {
			return nil, fmt.Errorf("line %d: the value of %s has a backslash, which systemd reads and this command "+
				"does not", number, name)
		}
		value, ok := unquoted(value)
		if !ok {
			return nil, fmt.Errorf("line %d: the quotes of %s do not enclose its value", number, name)
		}
		vars[name] = value
	}
	return vars, nil
}

// unquoted removes the quotes around a value. Quotes inside of a value without any are a part of it.
func unquoted(value string) (string, bool) {
	if value == "" || value[0] != '"' && value[0] != '\'' {
		return value, true
	}
	inner, closed := strings.CutSuffix(value[1:], value[:1])
	return inner, closed && !strings.Contains(inner, value[:1])
}
