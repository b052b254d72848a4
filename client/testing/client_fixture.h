// The fixture of this folder's tests: a client of a fake daemon in the same process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/testing/temp_folder.h"
#include "client/testing/fake_daemon.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// A DeviceRuntime that only opens and closes exported memory, and records these calls.
class StubDevices final : public DeviceRuntime {
 public:
  std::string_view backend() const override { return backend_name; }
  const std::vector<DeviceInfo>& devices() const override { return devices_; }
  absl::Status CheckHealth(int) const override { return absl::OkStatus(); }
  bool Reaches(int, int) override { return false; }
  absl::Status MakeCurrent(int) override { return absl::UnimplementedError("stub"); }
  absl::StatusOr<DevicePtr> Allocate(int, uint64_t) override { return absl::UnimplementedError("stub"); }
  absl::Status Free(DevicePtr) override { return absl::UnimplementedError("stub"); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int) override {
    return absl::UnimplementedError("stub");
  }
  absl::Status RegisterHost(std::byte*, uint64_t, HostAccess) override { return absl::OkStatus(); }
  absl::Status UnregisterHost(std::byte*) override { return absl::OkStatus(); }
  absl::StatusOr<IpcHandle> Export(DevicePtr) override { return absl::UnimplementedError("stub"); }
  absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle& handle) override {
    if (!open_error.ok()) return open_error;
    opened.push_back(handle.opaque);
    return DevicePtr{0, 0x1000};
  }
  absl::Status CloseIpc(DevicePtr pointer) override {
    closed.push_back(pointer.address);
    return close_error;
  }

  std::string backend_name = "cuda";
  std::vector<std::string> opened;
  std::vector<uint64_t> closed;
  absl::Status open_error;   // returned by each OpenIpc
  absl::Status close_error;  // returned by each CloseIpc

 private:
  std::vector<DeviceInfo> devices_;
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    daemon_ = std::make_unique<FakeDaemon>(folder_.path());
    auto client = Client::Connect({.daemon = daemon_->address(), .devices = &devices_});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  ~ClientTest() override {
    client_.reset();
    daemon_.reset();
  }

  static RequestContext Context() { return RequestContext::Background(absl::Seconds(60)); }

  // Two tensors with known bytes and padding between them.
  absl::StatusOr<PutResult> PutTwo(const PutOptions& options = {}) {
    const PutTensor tensors[] = {{"a", DType::kU8, {5}, Bytes("hello")},
                                 {"b", DType::kF32, {2}, Bytes("12345678")}};
    return client_->Put(Context(), tensors, {{"format", "pt"}}, options);
  }
  static std::span<const std::byte> Bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  static std::string Text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  const tensorcast::testing::TempFolder folder_;
  StubDevices devices_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
};

}  // namespace tensorcast::client
