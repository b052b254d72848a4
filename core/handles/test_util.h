// What the tests of this folder share: a folder for the socket, a sealed pool, waiting for a state.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/testing/temp_folder.h"
#include "core/handles/handle_server.h"
#include "core/handles/handles.h"

namespace tensorcast {

struct TestFolder : testing::TempFolder {
  std::string socket() const { return File("handles.sock"); }
};

SteadyTime Soon();  // a deadline that nothing in a test reaches unless it hangs

// A memfd of `bytes`, granule g filled with the byte g, sealed with `seals`.
UniqueFd MakePool(uint64_t bytes, int seals);
int PoolSeals();   // those of the daemon's pool
int OfferSeals();  // those that an offer needs

// A claim on extents of a pool, whose hold sets `released` when it goes.
Claim HostClaim(int pool_fd, uint64_t pool_bytes, std::vector<Extent> extents, uint64_t image_bytes,
                std::shared_ptr<void> hold = nullptr);
Claim DeviceClaim(std::shared_ptr<void> hold = nullptr);

std::unique_ptr<HandleServer> StartServer(const std::string& path);

int OpenDescriptors();  // of this process

// A raw connection to the socket, for peers that do not keep to the protocol; -1 on failure.
UniqueFd RawConnect(const std::string& path);

}  // namespace tensorcast
