// One TCP port for all ranks of a host (TUTTI_PORT). Who is called says in its hello at which door; behind each door is
// a listener of one process.
//
//   other host --- hello, door 7 ---> TCP port ---> a porter: any process of this user's that listens here
//                                                     \--- the connection, as a descriptor ---> UNIX socket of door 7
//
// The first process opens the port. Whoever comes later gets the same socket from one that has it, through a UNIX
// socket that they share as well: so nobody has to stay for the others, and who is stopped or busy keeps nobody
// waiting. A thread in each process accepts, reads as far as the door, and passes the connection on with nothing taken
// from it. So the listener behind the door proves callers as it does without a porter, and its limits hold. Of those
// that have not said where they want to go, a porter keeps 16. It stays until the last door of its process is closed.
// Who asks for a door that is not there comes to the one with the port's own number, if that is: to the root that
// TUTTI_ROOT means, which can say that the caller has another secret.
//
// Any thread.
#pragma once

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

// Listens at a door of this host's port. An error says if a program that is not this user's Tutti has the port.
Result<Fd> open_door(uint16_t port, uint64_t door);
// The next connection that a porter has brought to the door; none if there is none, as accept_one says it.
Fd accept_at_door(int door);
bool is_door(int listen_fd);

}  // namespace tutti
