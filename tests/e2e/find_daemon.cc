// Connects as a C++ program without an argument does, and prints the daemon's address.
#include <cstdio>

#include "tensorcast/client.h"

int main() {
  const auto client = tensorcast::client::Client::Connect({});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  std::puts((*client)->daemon().c_str());
}
