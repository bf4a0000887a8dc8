// Package safefile creates, replaces, appends to and removes files, locks and unix sockets in folders where other users
// may put links, pipes and files of their own in the way.
//
// A path is followed folder by folder, each opened relative to the one before (openat), and nothing is opened by its
// whole path afterwards. A symbolic link on the way is followed only if root or this process's user owns it and nobody
// else could have put it there. What is new gets a random name and O_EXCL|O_NOFOLLOW and is then renamed into place.
package safefile
