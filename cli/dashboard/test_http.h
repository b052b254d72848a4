// A client of the dashboard's server for this folder's tests: bytes through a real socket.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::dashboard::testing {

inline UniqueFd ConnectTo(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Only a hang takes longer.
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

inline void SendTo(const UniqueFd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the server has seen enough
    bytes.remove_prefix(sent);
  }
}

// Reads up to `text`, or to the end of the connection.
inline std::string ReadUntil(const UniqueFd& fd, std::string_view text) {
  std::string all;
  char buffer[4096];
  while (text.empty() || all.find(text) == std::string::npos) {
    const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    all.append(buffer, got);
  }
  return all;
}

// Sends these bytes and returns the whole answer.
inline std::string Exchange(uint16_t port, std::string_view bytes) {
  const UniqueFd fd = ConnectTo(port);
  SendTo(fd, bytes);
  return ReadUntil(fd, "");
}

// The answer to a GET with the right Host and these header lines, each with its line end.
inline std::string Get(uint16_t port, std::string_view target, std::string_view headers = "") {
  return Exchange(
      port, absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: 127.0.0.1:", port, "\r\n", headers, "\r\n"));
}

inline int StatusOf(std::string_view answer) {
  return answer.size() < 12 ? 0 : atoi(std::string(answer.substr(9, 3)).c_str());
}
inline std::string HeaderOf(const std::string& answer, std::string_view name) {
  const size_t begin = answer.find(absl::StrCat("\r\n", name, ": "));
  if (begin == std::string::npos) return "";
  const size_t value = begin + name.size() + 4;
  return answer.substr(value, answer.find("\r\n", value) - value);
}
inline std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

}  // namespace tensorcast::dashboard::testing
