// What the HTTP server takes for a request (RFC 9112), over sockets that send any bytes.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/http/http_errors.h"
#include "server/http/http_server.h"
#include "server/http/request_path.h"
#include "tests/testing/http_socket.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;
using testing::HttpSocket;

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

// "HTTP/1.1 200 OK".
std::string StatusLine(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }

class HttpMessageTest : public ::testing::Test {
 protected:
  // Answers with the request: "POST /path host body". "/late" is answered by the test, "/stream"
  // begins a stream that the test continues.
  void Start(const HttpLimits& limits = {}) {
    auto server = HttpServer::Start("127.0.0.1:0", limits, {}, [this](const auto& exchange) {
      const HttpRequest& request = exchange->request();
      ++handled_;
      if (request.path == "/late" || request.path == "/stream") {
        if (request.path == "/stream") exchange->StartStream("text/event-stream", ": silent\n\n");
        exchange->SetCallbacks([] {}, [this] { ++left_; });
        std::lock_guard lock(mutex_);
        return running_.push_back(exchange);
      }
      exchange->Reply(200, "text/plain",
                      StrCat(request.method, " ", request.path, " ", request.Header("host"), " ",
                             request.body));
    });
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }
  void TearDown() override { server_.reset(); }
  // What the server sends for `bytes`, until it closes the connection.
  std::string Answer(std::string_view bytes, bool ends = false) const {
    const HttpSocket client(server_->address());
    client.TrySend(bytes);
    if (ends) client.EndOfInput();
    return client.ReadAll();
  }
  // The body of the answer to a GET of `target`.
  std::string Path(const std::string& target) const {
    const std::string answer =
        Answer(StrCat("GET ", target, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }
  template <typename F>
  static bool Becomes(F condition) {
    for (int i = 0; i < 20000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
    return condition();
  }
  std::shared_ptr<HttpExchange> Running() {
    EXPECT_TRUE(Becomes([this] {
      std::lock_guard lock(mutex_);
      return !running_.empty();
    }));
    std::lock_guard lock(mutex_);
    auto exchange = std::move(running_.back());
    running_.pop_back();
    return exchange;
  }

  std::atomic<int> handled_{0};
  std::atomic<int> left_{0};
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> running_;  // guarded by mutex_
  std::unique_ptr<HttpServer> server_;
};

// Two programs that read such bytes may find different requests in them: the server finds none, and
// never takes what follows for the next one.
TEST_F(HttpMessageTest, BytesThatMayBeReadInTwoWaysAreRefused) {
  Start();
  const std::string smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string post = "POST /x HTTP/1.1\r\nHost: x\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string cases[] = {
      // Host
      "GET /x HTTP/1.1\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
      "GET /x HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x y\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x, y\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: me@x\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x/y\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x:80a\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: [::1\r\n\r\n",
      // Transfer-Encoding
      post + "Transfer-Encoding: frob\r\n\r\n",
      post + "Transfer-Encoding: identity\r\n\r\n",
      post + "Transfer-Encoding: gzip, chunked\r\n\r\n",
      post + "Transfer-Encoding: chunked, gzip\r\n\r\n",
      post + "Transfer-Encoding: chunked, chunked\r\n\r\n",
      post + "Transfer-Encoding: chunked;a=b\r\n\r\n",
      post + "Transfer-Encoding: \"chunked\"\r\n\r\n",
      post + "Transfer-Encoding: xchunked\r\n\r\n",
      post + "Transfer-Encoding:\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: frob\r\n\r\n",
      post + "Transfer-Encoding: frob\r\nTransfer-Encoding: chunked\r\n\r\n",
      post + "Transfer-Encoding:\x0b" + "chunked\r\n\r\n",
      post + "Transfer-Encoding : chunked\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
      post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
      post + "Content-Length: 4\r\nTransfer-Encoding: frob\r\n\r\n",
      "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
      // Content-Length
      post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
      post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\n",
      post + "Content-Length: 4, 4\r\n\r\n",
      post + "Content-Length: 4,\r\n\r\n",
      post + "Content-Length: -4\r\n\r\n",
      post + "Content-Length: +4\r\n\r\n",
      post + "Content-Length: 0x4\r\n\r\n",
      post + "Content-Length: 4 4\r\n\r\n",
      post + "Content-Length: 4.0\r\n\r\n",
      post + "Content-Length:\r\n\r\n",
      post + "Content-Length: 18446744073709551616\r\n\r\n",
      post + "Content-Length: 99999999999999999999999999\r\n\r\n",
      // lines
      "GET /x HTTP/1.1\nHost: x\n\n",
      "GET /x HTTP/1.1\r\nHost: x\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\n\n",
      "GET /x HTTP/1.1\rHost: x\r\r",
      "GET /x HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\n A: b\r\n\r\n",
      "GET /x HTTP/1.1\r\n Host: x\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nA:\r\n b\r\n\r\n",
      post + "Transfer-Encoding:\r\n chunked\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost : x\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nA\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nA(b): c\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: x\r\nA: b\x01\r\n\r\n",
      std::string("GET /x HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", 36),
      // the request line
      "GET  /x HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /x  HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /x HTTP/1.1 \r\nHost: x\r\n\r\n",
      "GET\t/x HTTP/1.1\r\nHost: x\r\n\r\n",
      " GET /x HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /x\r\n\r\n",
      "GET /x http/1.1\r\nHost: x\r\n\r\n",
      "GET x HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http://me@x/x HTTP/1.1\r\nHost: x\r\n\r\n",
      "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n",
      "G{T /x HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string("\x16\x03\x01\x02\0\x01\0", 7),
      // chunks
      chunked + "4 \r\nbody\r\n0\r\n\r\n",
      chunked + "+4\r\nbody\r\n0\r\n\r\n",
      chunked + "0x4\r\nbody\r\n0\r\n\r\n",
      chunked + "-1\r\nbody\r\n0\r\n\r\n",
      chunked + "4\nbody\r\n0\r\n\r\n",
      chunked + "4\r\nbodyX\r\n0\r\n\r\n",
      chunked + "4\r\nbody\n0\r\n\r\n",
      chunked + "4\r\nbody\r\n0\n\r\n",
      chunked + "\r\n4\r\nbody\r\n0\r\n\r\n",
      chunked + "4;a=\"\n\"\r\nbody\r\n0\r\n\r\n",
      chunked + "4;a\nb\r\nbody\r\n0\r\n\r\n",
      chunked + "10000000000000004\r\nbody\r\n0\r\n\r\n",
      chunked + "4\r\nbody\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
      chunked + "4\r\nbody\r\n0\r\nContent-Length: 4\r\n\r\n",
      chunked + "4\r\nbody\r\n0\r\nA: b\n\r\n",
  };
  for (const std::string& bytes : cases) {
    handled_ = 0;
    const std::string answer = Answer(bytes + smuggled);
    EXPECT_EQ(StatusLine(answer), "HTTP/1.1 400 Bad Request") << bytes;
    EXPECT_EQ(Count(answer, "x-request-id: "), 1U) << bytes << "\n" << answer;
    EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
    EXPECT_NE(answer.find("x-request-id: ps-"), std::string::npos) << answer;
    EXPECT_NE(answer.find("\"code\":\"MALFORMED_REQUEST\""), std::string::npos) << answer;
    EXPECT_EQ(handled_, 0) << bytes;
  }
}

TEST_F(HttpMessageTest, EachRefusalHasItsStatus) {
  Start({.max_header_bytes = 4096, .max_header_fields = 64, .max_body_bytes = 1000});
  const std::string post = "POST /x HTTP/1.1\r\nHost: x\r\nx-request-id: mine\r\n";
  std::string fields;
  for (int i = 0; i < 70; ++i) fields += "a: b\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {"GET /" + std::string(5000, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n", "414 TARGET_TOO_LONG"},
      {"GET /" + std::string(100'000, 'x'), "414 TARGET_TOO_LONG"},
      {post + "a: " + std::string(5000, 'x') + "\r\n\r\n", "431 HEADER_TOO_LARGE"},
      {post + fields + "\r\n", "431 HEADER_TOO_LARGE"},
      {post + "Content-Length: 1001\r\n\r\n", "413 BODY_TOO_LARGE"},
      {post + "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n", "413 BODY_TOO_LARGE"},
      {post + "Content-Length: 18446744073709551615\r\n\r\n", "413 BODY_TOO_LARGE"},
      {post + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n", "413 BODY_TOO_LARGE"},
      {post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "413 BODY_TOO_LARGE"},
      {post + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "415 UNSUPPORTED_ENCODING"},
      {post + "Content-Encoding: deflate\r\n\r\n", "415 UNSUPPORTED_ENCODING"},
      {post + "Content-Encoding: br\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       "415 UNSUPPORTED_ENCODING"},
      {post + "Content-Encoding: identity\r\nContent-Encoding: zstd\r\n\r\n",
       "415 UNSUPPORTED_ENCODING"},
      {post + "Expect: 200-ok\r\nContent-Length: 1\r\n\r\n", "417 EXPECTATION_FAILED"},
      {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505 HTTP_VERSION"},
      {"GET / HTTP/1.2\r\nHost: x\r\n\r\n", "505 HTTP_VERSION"},
      {"GET / HTTP/0.9\r\n\r\n", "505 HTTP_VERSION"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 HTTP_VERSION"},
  };
  for (const auto& [bytes, expected] : cases) {
    const HttpSocket client(server_->address());
    client.TrySend(bytes);
    client.EndOfInput();
    const std::string answer = client.ReadAll();
    EXPECT_EQ(answer.substr(0, 13), "HTTP/1.1 " + expected.substr(0, 4)) << bytes.substr(0, 200);
    EXPECT_NE(answer.find(StrCat("\"code\":\"", expected.substr(4), "\"")), std::string::npos)
        << answer;
    EXPECT_EQ(Count(answer, "x-request-id: "), 1U) << answer;
    if (bytes.starts_with(post) && expected.substr(0, 3) != "431") {
      EXPECT_NE(answer.find("x-request-id: mine\r\n"), std::string::npos) << answer;
    }
  }
  EXPECT_EQ(handled_, 0);
}

TEST_F(HttpMessageTest, TargetsNameAPath) {
  Start();
  EXPECT_EQ(Path("/v1/models"), "GET /v1/models x ");
  EXPECT_EQ(Path("/v1/models/"), "GET /v1/models x ");
  EXPECT_EQ(Path("//v1//models//"), "GET /v1/models x ");
  EXPECT_EQ(Path("/v1/models?limit=1&x=/a/"), "GET /v1/models x ");
  EXPECT_EQ(Path("/v1/models/?limit=1"), "GET /v1/models x ");
  EXPECT_EQ(Path("/?x"), "GET / x ");
  EXPECT_EQ(Path("/%76%31/models%2F"), "GET /v1/models x ");
  EXPECT_EQ(Path("/v1/../metrics"), "GET /v1/../metrics x ");
  EXPECT_EQ(Path("/a%20b%3Fc"), "GET /a b?c x ");
  EXPECT_EQ(Path("http://other.example:81/v1/models/?x"), "GET /v1/models other.example:81 ");
  EXPECT_EQ(Path("HTTPS://[::1]:81"), "GET / [::1]:81 ");
  EXPECT_EQ(Path("http://other.example?x"), "GET / other.example ");
  EXPECT_NE(
      Answer("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find("OPTIONS * x"),
      std::string::npos);
}

TEST_F(HttpMessageTest, RequestsFollowEachOtherOnAConnection) {
  Start();
  const std::string requests =
      "\r\nGET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
      "POST /3 HTTP/1.1\r\nhost:\tx \r\nTRANSFER-ENCODING: Chunked\r\n\r\n"
      "3;a=b;c=\"d e\"\r\nbod\r\n01\r\ny\r\n000\r\nTrailer: x\r\n\r\n"
      "\r\n"
      "GET /4 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
      "POST /0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
      "HEAD /5 HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n"
      "GET /6 HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n"
      "GET /7 HTTP/1.1\r\nHost: x\r\n\r\n";
  const auto check = [](const std::string& answer) {
    size_t at = 0;
    for (const char* body : {"GET /1 x ", "POST /2 x body", "POST /3 x body", "GET /4 x body",
                             "POST /0 x ", "Content-Length: 9\r\n", "GET /6 x "}) {
      at = answer.find(body, at);
      ASSERT_NE(at, std::string::npos) << body << "\n" << answer;
    }
    EXPECT_EQ(Count(answer, "HTTP/1.1 200 OK"), 7U) << answer;
    EXPECT_EQ(answer.find("HEAD"), std::string::npos) << answer;  // no body
  };
  check(Answer(requests));
  // However the bytes are cut.
  const HttpSocket client(server_->address());
  for (const char byte : requests) {
    client.TrySend(std::string_view(&byte, 1));
    std::this_thread::sleep_for(200us);
  }
  check(client.ReadAll());
}

TEST_F(HttpMessageTest, OlderClientsGetOneAnswer) {
  Start();
  for (const char* head : {"GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.0\r\nHost: x\r\n\r\n",
                           "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"}) {
    const std::string answer = Answer(StrCat(head, "GET /2 HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_EQ(Count(answer, "HTTP/1.1 200 OK"), 1U) << answer;
    EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
  }
}

TEST_F(HttpMessageTest, AClientThatExpectsContinueGetsIt) {
  Start();
  const std::string head =
      "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-Continue\r\nConnection: "
      "close\r\n\r\n";
  const HttpSocket client(server_->address());
  client.Send(head);
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("body");
  EXPECT_NE(client.ReadAll().find("POST /x x body"), std::string::npos);
  EXPECT_TRUE(Answer(head + "body").starts_with("HTTP/1.1 200 OK"));
}

TEST_F(HttpMessageTest, AClientThatSendsNoMoreGetsItsAnswers) {
  Start();
  EXPECT_NE(Answer("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n", /*ends=*/true).find("GET /1"),
            std::string::npos);
  EXPECT_NE(Answer("GET /1 HTTP/1.0\r\n\r\n", /*ends=*/true).find("GET /1"), std::string::npos);
  const std::string several = Answer(
      "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nPOST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n!"
      "GET /3 HTTP/1.1\r\nHost: x\r\n\r\n",
      /*ends=*/true);
  EXPECT_EQ(Count(several, "200 OK"), 3U) << several;
  // One that waits longer, and its connection is not taken for a lost one.
  const HttpSocket client(server_->address());
  client.Get("/late");
  client.EndOfInput();
  const auto exchange = Running();
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  exchange->Reply(200, "text/plain", "late");
  const std::string answer = client.ReadAll();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK")) << answer;
  EXPECT_TRUE(answer.ends_with("late")) << answer;
  EXPECT_EQ(left_, 0);
  // What ends within a request is none.
  EXPECT_EQ(StatusLine(Answer("GET / HT", /*ends=*/true)), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(StatusLine(Answer("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n!", true)),
            "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(Answer("", /*ends=*/true), "");
}

TEST_F(HttpMessageTest, AClientThatLeavesIsNoticed) {
  Start({.silence = 500ms});
  for (const char* path : {"/late", "/stream"}) {
    left_ = 0;
    std::shared_ptr<HttpExchange> exchange;
    {
      const HttpSocket client(server_->address());
      client.Get(path);
      exchange = Running();
    }
    EXPECT_TRUE(Becomes([this] { return left_ == 1; })) << path;
  }
}

TEST_F(HttpMessageTest, AStreamThatIsSilentGetsComments) {
  Start({.silence = 100ms});
  const HttpSocket client(server_->address());
  client.Get("/stream");
  const auto exchange = Running();
  const std::string comment = "a\r\n: silent\n\n\r\n";
  EXPECT_NE(client.ReadUntil(comment).find("text/event-stream"), std::string::npos);
  EXPECT_EQ(client.ReadUntil(comment), comment);
  exchange->Send("data: x\n\n");
  exchange->EndStream();
  const std::string rest = client.ReadUntil("0\r\n\r\n");
  EXPECT_NE(rest.find("9\r\ndata: x\n\n\r\n"), std::string::npos) << rest;
  client.Get("/next");  // the connection goes on
  EXPECT_NE(client.ReadUntil("GET /next x ").find("200 OK"), std::string::npos);
}

TEST_F(HttpMessageTest, WhatDoesNotComeInTimeIsAnswered) {
  Start({.read_timeout = 200ms, .keep_alive = 300ms});
  for (const char* bytes :
       {"GET / HT", "GET / HTTP/1.1\r\nHost: x\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n!",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n"}) {
    const std::string answer = Answer(bytes);
    EXPECT_EQ(StatusLine(answer), "HTTP/1.1 408 Request Timeout") << bytes;
    EXPECT_NE(answer.find("\"code\":\"REQUEST_TIMEOUT\""), std::string::npos) << answer;
  }
  EXPECT_EQ(Answer(""), "");
  const std::string idle = Answer("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(Count(idle, "HTTP/1.1 "), 1U) << idle;
}

TEST_F(HttpMessageTest, TypesOfBodiesHaveParameters) {
  const auto check = [](const char* type) {
    HttpRequest request;
    request.headers = {{"Content-Type", type}};
    return CheckJsonType(request).ok();
  };
  for (const char* type :
       {"application/json", "application/json ; charset=utf-8", "Application/JSON",
        "application/json;charset=UTF-8", "application/json\t;x", "application/json;"}) {
    EXPECT_TRUE(check(type)) << type;
  }
  for (const char* type :
       {"", "text/plain", "application/jsonx", "application/json+x", "text/plain; application/json",
        "application/x-www-form-urlencoded", "application /json", "multipart/form-data"}) {
    EXPECT_FALSE(check(type)) << type;
  }
}

TEST_F(HttpMessageTest, AnObjectNeedsNoTypeUnlessABrowserSendsIt) {
  const auto check = [](const char* body, HttpHeaders headers) {
    HttpRequest request;
    request.body = body;
    headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    request.headers = std::move(headers);
    return CheckApiBody(request).ok();
  };
  EXPECT_TRUE(check("{}", {}));
  EXPECT_TRUE(check(" \r\n\t{\"prompt\": 1}", {}));
  for (const char* body : {"", " ", "[]", "prompt=1", "\"{\"", "\xEF\xBB\xBF{}"})
    EXPECT_FALSE(check(body, {})) << body;
  // Of a form of another site, or of a page with an opaque origin.
  EXPECT_FALSE(check("{}", {{"Origin", "https://site.example"}}));
  EXPECT_FALSE(check("{}", {{"origin", "null"}}));
  EXPECT_FALSE(check("{}", {{"Origin", ""}}));
  EXPECT_FALSE(check("{}", {{"Sec-Fetch-Site", "cross-site"}}));
}

// A client may send a megabyte in the place of a word.
TEST(HttpErrors, QuoteAKilobyteAtMost) {
  const Status status = InvalidArgument("role: expected user, found ", std::string(1 << 20, 'x'));
  EXPECT_LT(ErrorBody(status).size(), 1300u);
  EXPECT_NE(ErrorBody(status).find(R"("param":"role")"), std::string::npos) << ErrorBody(status);
  EXPECT_LT(AnthropicErrorBody(status, "id").size(), 1300u);
  EXPECT_LT(ErrorBody(InvalidArgument(std::string(1 << 20, 'x'), ": unknown")).size(), 1300u);
}

}  // namespace
}  // namespace polysketch
