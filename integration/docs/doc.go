// Package docs runs the commands that README.md, docs/*.md and the examples of manxctl's --help show.
package docs
