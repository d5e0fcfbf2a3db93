// The threads that gRPC starts as its load grows.
#pragma once

namespace polysketch {

// Makes gRPC start all threads of its executor, two for each processor of the machine. gRPC would
// start them when calls wait, and give work for good to one that the machine refuses to start. If
// it does not give them, the process ends with a message and exit status 1, as by StartThread.
// Called while a gRPC server or channel exists.
void StartGrpcThreads();

}  // namespace polysketch
