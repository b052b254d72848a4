#include "cli/dashboard/http_request.h"

#include <gmock/gmock.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace tensorcast::dashboard::http_request_test {
namespace {

// The status that the head is refused with; 0: it is taken.
int RefusalOf(std::string_view head, HttpRequest* request = nullptr) {
  HttpRequest unused;
  HttpResponse refusal;
  return ParseHead(head, request == nullptr ? &unused : request, &refusal) ? 0 : refusal.status;
}

TEST(HttpRequest, Head_IsParsedAndDecoded) {
  HttpRequest request;
  ASSERT_EQ(
      RefusalOf("GET /node?node=a%2Fb+c&x= HTTP/1.1\r\nHost: h\r\nCOOKIE: a=1; b=2\r\nCookie: c=3\r\n\r\n",
                &request),
      0);
  EXPECT_EQ(request.path, "/node");
  EXPECT_EQ(request.query, (Query{{"node", "a/b c"}, {"x", ""}}));
  EXPECT_EQ(request.Header("host"), "h");
  EXPECT_EQ(request.Cookie("b"), "2");
  EXPECT_EQ(request.Cookie("c"), "3");
  EXPECT_EQ(request.Cookie("missing"), "");
  EXPECT_FALSE(request.head);
}

TEST(HttpRequest, OtherMethods_Are405) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "get"}) {
    EXPECT_EQ(RefusalOf(absl::StrCat(method, " / HTTP/1.1\r\nHost: h\r\n\r\n")), 405) << method;
  }
}

TEST(HttpRequest, DamagedHead_Is400) {
  for (const std::string_view head :
       {"\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1 x\r\n\r\n", "GET http://h/ HTTP/1.1\r\n\r\n",
        "GET * HTTP/1.1\r\n\r\n", "GET /%zz HTTP/1.1\r\n\r\n", "GET /%4 HTTP/1.1\r\n\r\n",
        "GET /%00 HTTP/1.1\r\n\r\n", "GET /%ff HTTP/1.1\r\n\r\n", "GET /?a=%0d%0a HTTP/1.1\r\n\r\n",
        "GET /?a=1&a=2 HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nname : x\r\n\r\n", "GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nA: \x01\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    EXPECT_EQ(RefusalOf(head), 400) << head;
  }
  EXPECT_EQ(RefusalOf("GET / HTTP/2.0\r\n\r\n"), 505);
}

TEST(HttpRequest, LongAddressAndManyHeaders_AreRefused) {
  EXPECT_EQ(RefusalOf(absl::StrCat("GET /", std::string(kMaxTargetBytes, 'a'), " HTTP/1.1\r\n\r\n")), 414);
  std::string head = "GET / HTTP/1.1\r\n";
  for (size_t i = 0; i < kMaxHeaders; ++i) absl::StrAppend(&head, "X-", i, ": y\r\n");
  EXPECT_EQ(RefusalOf(head + "\r\n"), 0);
  EXPECT_EQ(RefusalOf(head + "One: more\r\n\r\n"), 431);
}

TEST(HttpRequest, RandomBytes_AreRefusedOrTaken) {
  std::mt19937 random(7);
  constexpr std::string_view kAlphabet = "GET / HTTP/1.1\r\n:%?&=+\0\xff\x80 aZ09";
  for (int i = 0; i < 20'000; ++i) {
    std::string head = i % 2 == 0 ? "GET /" : "";
    for (unsigned int length = random() % 60; length > 0; --length) {
      head += kAlphabet[random() % kAlphabet.size()];
    }
    HttpRequest request;
    if (RefusalOf(head + "\r\n\r\n", &request) != 0) continue;
    EXPECT_THAT(request.path, ::testing::StartsWith("/")) << ::testing::PrintToString(head);
  }
}

TEST(EncodeUrl, EncodedText_IsDecodedToItself) {
  const std::string text = "a/b c?&=%+\u00e9";
  EXPECT_EQ(DecodeUrl(EncodeUrl(text), /*plus=*/true).value_or(""), text);
}

}  // namespace
}  // namespace tensorcast::dashboard::http_request_test
