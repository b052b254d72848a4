#include "otel/sdk/testing/http_collector.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tensorcast::otel::testing {
namespace {

bool ReadMore(int connection, std::string& text) {
  char buffer[4096];
  const ssize_t count = read(connection, buffer, sizeof(buffer));
  if (count <= 0) return false;
  text.append(buffer, static_cast<size_t>(count));
  return true;
}

// A client that went away meanwhile is not told.
void Answer(int connection, const std::string& status) {
  const std::string answer =
      absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  (void)send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
}

}  // namespace

HttpCollector::HttpCollector(std::vector<std::string> statuses, const std::string& host, int port)
    : statuses_(std::move(statuses)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_GE(listener_, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  CHECK_EQ(inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
  socklen_t size = sizeof(address);
  CHECK_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0) << host << ":" << port;
  CHECK_EQ(listen(listener_, 64), 0);
  CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  endpoint_ = absl::StrCat("http://", host, ":", ntohs(address.sin_port));
  thread_ = std::thread([this] { Serve(); });
}

HttpCollector::~HttpCollector() {
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

std::map<std::string, HttpPost> HttpCollector::posts() const {
  absl::MutexLock lock(&mutex_);
  return posts_;
}

size_t HttpCollector::count(const std::string& path) const {
  absl::MutexLock lock(&mutex_);
  const auto found = counts_.find(path);
  return found == counts_.end() ? 0 : found->second;
}

void HttpCollector::Serve() {
  while (true) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    Take(connection);
    close(connection);
  }
}

void HttpCollector::Take(int connection) {
  std::string text;
  size_t head_end = std::string::npos;
  while ((head_end = text.find("\r\n\r\n")) == std::string::npos) {
    if (!ReadMore(connection, text)) return;
  }
  HttpPost post;
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, head_end), "\r\n");
  for (const std::string& line : lines) {
    const std::pair<std::string, std::string> header = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    post.headers[absl::AsciiStrToLower(header.first)] = header.second;
  }
  size_t length = 0;
  const std::vector<std::string> request = absl::StrSplit(lines[0], ' ');
  if (request.size() < 3 || request[0] != "POST" ||
      !absl::SimpleAtoi(post.headers["content-length"], &length)) {
    return Answer(connection, "400 Bad Request");
  }
  while (text.size() < head_end + 4 + length) {
    if (!ReadMore(connection, text)) return;
  }
  post.body = text.substr(head_end + 4);
  std::string status;
  {
    absl::MutexLock lock(&mutex_);
    status = statuses_[std::min(counts_[request[1]]++, statuses_.size() - 1)];
    posts_.insert_or_assign(request[1], std::move(post));
  }
  Answer(connection, status);
}

}  // namespace tensorcast::otel::testing
