// One TCP port for all ranks of a host (TUTTI_PORT). A caller's hello says which door it wants; behind each door is a
// listener of one process.
//
//   other host --- hello, door 7 ---> TCP port ---> a porter: any process of this user that listens here
//                                                     \--- the connection, as a descriptor ---> UNIX socket of door 7
//
// The first process opens the port. Each later process gets the same socket from one that has it, through a UNIX socket
// that they also share: so no process has to stay for the others, and one that is stopped or busy keeps nobody waiting.
// A thread in each process accepts, peeks at the hello, and passes the connection on with nothing consumed. So the
// listener behind the door authenticates callers as without a porter, and its limits hold. A porter keeps at most 16
// callers that have not named a door yet. It stays until the last door of its process is closed and no caller is left.
// A caller whose door does not exist goes to the door with the port's own number, if there is one: to the root that
// TUTTI_ROOT means, which can say that the caller has another secret.
//
// Any thread.
#pragma once

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

// Listens at a door of this host's port. An error says so if a program other than this user's Tutti has the port.
Result<Fd> open_door(uint16_t port, uint64_t door);
// The next connection that a porter has brought to the door; if there is none, the result is as accept_one()'s.
Fd accept_at_door(int door);
bool is_door(int listen_fd);

}  // namespace tutti
