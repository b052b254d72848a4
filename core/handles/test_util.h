// Helpers for the tests of this folder: a folder for the socket, a sealed pool, raw connections.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/testing/temp_folder.h"
#include "core/handles/codec.h"
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

// A claim on extents of a pool with one segment, contiguous in the image.
Claim HostClaim(int pool_fd, uint64_t pool_bytes, const std::vector<Extent>& extents, uint64_t image_bytes,
                std::shared_ptr<void> hold = nullptr);
Claim DeviceClaim(std::shared_ptr<void> hold = nullptr);

std::unique_ptr<HandleServer> StartServer(const std::string& path);

int OpenDescriptors();  // of this process

// A raw connection to the socket, for clients that violate the protocol; empty on failure.
UniqueFd RawConnect(const std::string& path);
// A raw connection after the exchange of HELLO.
UniqueFd RawGreet(const std::string& path);
// A listener that replaces the file at `path`, for servers that violate the protocol; empty on failure.
UniqueFd RawListen(const std::string& path, int backlog);

// Sends bytes or a frame, with a descriptor unless it is -1. REQUIRES: the socket's buffer has room for all
// bytes.
void SendBytes(int socket, std::string_view bytes, int fd = -1);
void SendFrame(int socket, const Frame& frame, int fd = -1);
// The next frame from the other end; nullopt if it closed the connection.
std::optional<Frame> ReceiveFrame(int socket);
// The code of an ERROR frame; kOk for any other frame.
absl::StatusCode ErrorOf(const std::optional<Frame>& frame);

}  // namespace tensorcast
