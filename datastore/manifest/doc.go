// Package manifest reads resource files, folders and streams, and reports errors with file and line.
package manifest
