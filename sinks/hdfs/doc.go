// Package hdfs stores rows as files in an HDFS: the sink of package directory on another file system, through github.com/colinmarc/hdfs.
//
// What that client does not do, and what is made of it:
//
//   - It has no recovery of a write pipeline. When a DataNode dies under a file that is being written, the file is lost; the sink removes it and writes the claim again,
//     whole, under a name that no earlier try had. So a lease that a dead worker or a lost file still holds is never in the way: nothing is appended to, and
//     removing and renaming need no lease.
//   - Its rename replaces a file silently. What must not be replaced is a directory with a file in it, which no rename replaces.
//   - Its requests to a NameNode wait for ever. Here each connection has a timeout for a single read or write, after which it is closed, and the next request
//     takes the next NameNode.
//   - It tells of a file's last block once. When the block before was not yet complete then, the file never is, and is written again after the timeout.
//   - It keeps the key of encrypted blocks for ever, and asks for the renewal of tickets that have ended. With Kerberos, a client that failed is replaced.
//   - It writes blocks under integrity, or under privacy without AES, that it cannot read. So with Kerberos a start writes a file and reads it back.
//   - It cannot have the DataNodes sync a block (hsync). A closed file is in the memory of all its DataNodes, so it outlives processes and single machines, not a power
//     cut of all of them at once.
package hdfs
