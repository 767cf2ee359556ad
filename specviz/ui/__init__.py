"""The page: Gradio components, handlers and the wiring between them."""
