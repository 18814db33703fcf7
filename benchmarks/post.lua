-- What wrk sends: one item, to the unary endpoint.
wrk.method = "POST"
wrk.body = '{"value": 3}'
wrk.headers["Content-Type"] = "application/json"
