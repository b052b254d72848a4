// A client process to be killed: lease_holder DAEMON KEY [LOCATION] --ready-fd N attaches, says so, and holds
// on until it dies.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tensorcast/client.h"
#include "tests/stand_ins/test_gpus.h"

int main(int argc, char** argv) {
  if (argc < 5 || argc > 6 || std::strcmp(argv[argc - 2], "--ready-fd") != 0) return 2;
  const auto devices = tensorcast::stand_ins::OpenClientGpus();
  if (!devices.ok()) return 1;
  const auto client = tensorcast::client::Client::Connect({.daemon = argv[1], .devices = devices->get()});
  if (!client.ok()) return 1;
  const auto replica = (*client)->Get(tensorcast::RequestContext::Background(absl::Seconds(60)), argv[2],
                                      {.location = argc == 6 ? argv[3] : "cpu"});
  if (!replica.ok()) {
    std::fprintf(stderr, "%s\n", replica.status().ToString().c_str());
    return 1;
  }
  if (write(std::atoi(argv[argc - 1]), "held\n", 5) != 5) return 1;
  pause();
}
