// Package manifest reads the resource files, folders and streams that users name, and says in which file and line a
// mistake is.
package manifest
