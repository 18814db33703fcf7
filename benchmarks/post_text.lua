-- What wrk sends: one text of 4 kB, to the endpoint of embeddings.
wrk.method = "POST"
wrk.body = '"' .. string.rep("A text to be embedded. ", 180) .. '"'
wrk.headers["Content-Type"] = "application/json"
