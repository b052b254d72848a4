// A client process to be killed: lease_holder DAEMON KEY --ready-fd N attaches, says so, and holds on until
// it dies.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tensorcast/client.h"

int main(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[3], "--ready-fd") != 0) return 2;
  const auto client = tensorcast::client::Client::Connect({.daemon = argv[1]});
  if (!client.ok()) return 1;
  const auto replica = (*client)->Get(tensorcast::RequestContext::Background(absl::Seconds(60)), argv[2], {});
  if (!replica.ok()) return 1;
  if (write(std::atoi(argv[4]), "held\n", 5) != 5) return 1;
  pause();
}
