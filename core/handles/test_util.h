// What the tests of this folder share: a folder for the socket, a sealed pool, waiting for a state.
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

// A claim on extents of a pool of one segment, side by side in the image.
Claim HostClaim(int pool_fd, uint64_t pool_bytes, const std::vector<Extent>& extents, uint64_t image_bytes,
                std::shared_ptr<void> hold = nullptr);
Claim DeviceClaim(std::shared_ptr<void> hold = nullptr);

std::unique_ptr<HandleServer> StartServer(const std::string& path);

int OpenDescriptors();  // of this process

// A raw connection to the socket, for peers that do not keep to the protocol; -1 on failure.
UniqueFd RawConnect(const std::string& path);
// And one that has said HELLO and was answered.
UniqueFd RawGreet(const std::string& path);
// A listener at `path`, in the place of one that was there, for servers that do not; -1 on failure.
UniqueFd RawListen(const std::string& path, int backlog);

// Raw bytes or a frame, with a descriptor unless it is -1, that the socket's buffer has to have room for.
void SendBytes(int socket, std::string_view bytes, int fd = -1);
void SendFrame(int socket, const Frame& frame, int fd = -1);
// The next frame that the other end sends; nothing when it closed the connection.
std::optional<Frame> ReceiveFrame(int socket);
// kOk: it is not an ERROR.
absl::StatusCode ErrorOf(const std::optional<Frame>& frame);

}  // namespace tensorcast
